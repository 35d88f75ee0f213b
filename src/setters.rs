//! Chained setters for structs of options, which are `#[non_exhaustive]` and so cannot be written as literals outside.

/// Makes a setter for each of these fields. The values may be of any type that converts into the type of the field, such as
/// what goes into an `Option`.
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
