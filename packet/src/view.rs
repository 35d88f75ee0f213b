//! What all views have in common, so that the file of a header only says what is its own.

/// Gives a view its constructor and one accessor for each row `name -> type = expression`.
///
/// The struct stays a plain one, with its layout in sight; only the functions around it are generated.
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
