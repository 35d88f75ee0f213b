//! Chained setters for option structs. The structs are `#[non_exhaustive]`, so other crates cannot write
//! literals.

/// Defines a setter for each of these fields. A setter accepts any type that converts into the type of the
/// field, for example the value of an `Option`.
macro_rules! setters {
    ($type:ident $(<$life:lifetime>)? { $($field:ident: $value:ty),+ $(,)? }) => {
        impl $(<$life>)? $type $(<$life>)? {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $value) -> Self {
                    self.$field = $field.into();
                    self
                }
            )+
        }
    };
}
