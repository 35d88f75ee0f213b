//! The common parts of all views.

/// Defines the constructor of a view, and an accessor for each row `name -> type = expression`.
///
/// The struct is declared outside the macro, so that its layout is visible. The macro only generates
/// functions.
macro_rules! view {
    ($view:ident($self:ident) of $header:ident in $layer:path;
     $($(#[$doc:meta])* $name:ident -> $type:ty = $value:expr;)*
    ) => {
        const _: () = assert!(size_of::<$view>() == $header::LEN);

        impl $view {
            #[doc = concat!("The view of the first [`", stringify!($header), "::LEN`] bytes, and what is left.")]
            #[inline]
            pub fn from_prefix(bytes: &[u8]) -> Result<(&Self, &[u8]), $crate::error::ParseError> {
                <Self as zerocopy::FromBytes>::ref_from_prefix(bytes)
                    .map_err(|_| $crate::error::ParseError::truncated($layer, 0, $header::LEN, bytes.len()))
            }

            $($(#[$doc])* #[inline] #[must_use] pub const fn $name(&$self) -> $type { $value })*
        }
    };
}

pub(crate) use view;
