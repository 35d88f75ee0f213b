//! Rows of tables, and the types of their values, each with the column that collects them.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::{
    BooleanBuilder, Float64Builder, StringBuilder, TimestampNanosecondBuilder, UInt8Builder, UInt16Builder,
    UInt32Builder, UInt64Builder,
};
use pyo3::PyResult;
use roce_packet::{MacAddr, Opcode, Syndrome};

use crate::table::{Names, Table};

/// The value of one row in one column.
pub(crate) trait Cell: Sized {
    /// Collects the values of all rows.
    type Column: Default;

    /// Adds a row.
    fn push(column: &mut Self::Column, value: Option<Self>);

    /// Returns the column.
    fn finish(column: Self::Column) -> PyResult<ArrayRef>;
}

macro_rules! numbers {
    ($($cell:ty: $column:ty;)*) => {$(
        impl Cell for $cell {
            type Column = $column;

            fn push(column: &mut $column, value: Option<Self>) {
                column.append_option(value);
            }

            fn finish(mut column: $column) -> PyResult<ArrayRef> {
                Ok(Arc::new(column.finish()))
            }
        }
    )*};
}

numbers! {
    u8: UInt8Builder;
    u16: UInt16Builder;
    u32: UInt32Builder;
    u64: UInt64Builder;
    f64: Float64Builder;
    bool: BooleanBuilder;
    String: StringBuilder;
}

/// A time since 1970 UTC.
pub(crate) struct Nanoseconds(pub(crate) u64);

impl Cell for Nanoseconds {
    type Column = TimestampNanosecondBuilder;

    fn push(column: &mut Self::Column, value: Option<Self>) {
        // Times after the year 2262 are missing.
        column.append_option(value.and_then(|Self(time)| i64::try_from(time).ok()));
    }

    fn finish(mut column: Self::Column) -> PyResult<ArrayRef> {
        Ok(Arc::new(column.finish().with_timezone("UTC")))
    }
}

/// The name of an opcode.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct OpcodeName(pub(crate) u8);

/// The meaning of a syndrome.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Answer(pub(crate) u8);

macro_rules! names {
    ($($cell:ty: $text:expr;)*) => {$(
        impl Cell for $cell {
            type Column = Names<$cell>;

            fn push(column: &mut Names<$cell>, value: Option<Self>) {
                column.push(value, $text);
            }

            fn finish(column: Names<$cell>) -> PyResult<ArrayRef> {
                column.finish()
            }
        }
    )*};
}

names! {
    Cow<'static, str>: |text| text.clone().into_owned();
    MacAddr: MacAddr::to_string;
    IpAddr: IpAddr::to_string;
    OpcodeName: |Self(number)| Opcode(*number).to_string();
    Answer: |Self(byte)| Syndrome::from_byte(*byte).to_string();
}

/// A row of a table.
pub(crate) trait Row: Sized {
    /// Collects the values of all rows.
    type Columns: Default;

    /// Adds a row.
    fn push(self, columns: &mut Self::Columns);

    /// Returns the table.
    fn finish(columns: Self::Columns) -> PyResult<Table>;
}

/// The rows of a table so far.
pub(crate) struct Rows<R: Row>(R::Columns);

impl<R: Row> Rows<R> {
    pub(crate) fn new() -> Self {
        Self(R::Columns::default())
    }

    pub(crate) fn push(&mut self, row: R) {
        row.push(&mut self.0);
    }

    pub(crate) fn finish(self) -> PyResult<Table> {
        R::finish(self.0)
    }
}

/// Defines a row: a struct whose fields are the columns of a table in this order. A value may be missing.
macro_rules! rows {
    ($(#[$about:meta])* struct $row:ident {
        $($(#[$doc:meta])* $name:ident: $cell:ty,)*
    }) => {
        $(#[$about])*
        #[derive(Default)]
        struct $row {
            $($(#[$doc])* $name: Option<$cell>,)*
        }

        const _: () = {
            #[derive(Default)]
            pub(crate) struct Columns {
                $($name: <$cell as $crate::cells::Cell>::Column,)*
            }

            impl $crate::cells::Row for $row {
                type Columns = Columns;

                fn push(self, columns: &mut Columns) {
                    $(<$cell as $crate::cells::Cell>::push(&mut columns.$name, self.$name);)*
                }

                fn finish(columns: Columns) -> pyo3::PyResult<$crate::table::Table> {
                    use $crate::cells::Cell;
                    $crate::table::Table::new(vec![
                        $((stringify!($name), <$cell as Cell>::finish(columns.$name)?),)*
                    ])
                }
            }
        };
    };
}

pub(crate) use rows;
