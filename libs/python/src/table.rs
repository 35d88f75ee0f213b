//! Arrow tables, which pandas, polars, pyarrow and others read without a copy.
//!
//! The [Arrow PyCapsule interface] hands the columns over as C structures.
//!
//! [Arrow PyCapsule interface]: https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use arrow_array::builder::{PrimitiveBuilder, StringBuilder};
use arrow_array::ffi::FFI_ArrowSchema;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, DictionaryArray, RecordBatch, RecordBatchIterator};
use arrow_schema::{ArrowError, Field, Schema};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::errors::exception;

/// A table of columns in the memory format of Arrow.
#[pyclass(frozen, module = "roce")]
pub(crate) struct Table(RecordBatch);

impl Table {
    /// Creates a table of columns with their names. Columns may contain missing values.
    pub(crate) fn new(columns: Vec<(&'static str, ArrayRef)>) -> PyResult<Self> {
        let field =
            |(name, array): &(&'static str, ArrayRef)| Field::new(*name, array.data_type().clone(), true);
        let schema = Schema::new(columns.iter().map(field).collect::<Vec<_>>());
        let arrays = columns.into_iter().map(|(_, array)| array).collect();
        RecordBatch::try_new(Arc::new(schema), arrays).map(Self).map_err(|error| exception(&error))
    }
}

#[pymethods]
impl Table {
    fn __len__(&self) -> usize {
        self.0.num_rows()
    }

    /// The names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.0.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema =
            FFI_ArrowSchema::try_from(self.0.schema().as_ref()).map_err(|error| exception(&error))?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    /// The consumer may ask for another schema, which this table may ignore.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let batches: [Result<RecordBatch, ArrowError>; 1] = [Ok(self.0.clone())];
        let reader = RecordBatchIterator::new(batches, self.0.schema());
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), c"arrow_array_stream")
    }
}

/// A column of texts that repeat. Each text is stored once, with the key of which it is made.
pub(crate) struct Names<K> {
    keys: HashMap<K, i32>,
    /// The key of the row before, because neighbouring rows are often equal.
    last: Option<(K, i32)>,
    texts: StringBuilder,
    rows: PrimitiveBuilder<Int32Type>,
}

impl<K> Default for Names<K> {
    fn default() -> Self {
        Self { keys: HashMap::new(), last: None, texts: StringBuilder::new(), rows: PrimitiveBuilder::new() }
    }
}

impl<K: Clone + Eq + Hash> Names<K> {
    /// Adds a row. Without a key, its value is missing.
    pub(crate) fn push(&mut self, key: Option<K>, text: impl FnOnce(&K) -> String) {
        let index = key.map(|key| match &self.last {
            Some((last, index)) if *last == key => *index,
            _ => self.index_of(key, text),
        });
        self.rows.append_option(index);
    }

    fn index_of(&mut self, key: K, text: impl FnOnce(&K) -> String) -> i32 {
        // Rows are counted with 32 bits, so the number of texts fits.
        let next = self.keys.len() as i32;
        let index = *self.keys.entry(key.clone()).or_insert(next);
        if index == next {
            self.texts.append_value(text(&key));
        }
        self.last = Some((key, index));
        index
    }

    pub(crate) fn finish(mut self) -> PyResult<ArrayRef> {
        let column = DictionaryArray::try_new(self.rows.finish(), Arc::new(self.texts.finish()));
        Ok(Arc::new(column.map_err(|error| exception(&error))?))
    }
}
