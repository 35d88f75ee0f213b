//! Parts of a device specification: a kind, a colon, a subject, and options behind commas.

use super::OpenError;

/// The text of a device specification.
#[derive(Clone, Copy)]
pub(super) struct SpecText<'a> {
    whole: &'a str,
    /// The text without the kind and the colon.
    rest: &'a str,
}

/// An option `name=value`; `whole` is the unsplit text, for errors.
pub(super) struct SpecOption<'a> {
    pub(super) whole: &'a str,
    pub(super) name: &'a str,
    pub(super) value: &'a str,
}

impl<'a> SpecText<'a> {
    /// Splits off `kind`, which may be omitted, and the colon.
    pub(super) fn new(kind: &str, whole: &'a str) -> Self {
        let rest = whole.strip_prefix(kind).unwrap_or(whole);
        Self { whole, rest: rest.strip_prefix(':').unwrap_or(rest) }
    }

    /// Returns the text before the first comma.
    pub(super) fn subject(&self) -> &'a str {
        self.rest.split(',').next().unwrap_or_default().trim()
    }

    /// Returns the subject as the name of an interface.
    #[cfg(feature = "kernel-host")]
    pub(super) fn interface(&self, expected: &'static str) -> Result<String, OpenError> {
        let name = self.subject();
        Ok(interface_name(name).ok_or_else(|| self.bad(name, expected))?.to_owned())
    }

    /// Returns the options in order, or an error that lists the `known` ones if one is not `name=value`.
    pub(super) fn options(
        self,
        known: &'static str,
    ) -> impl Iterator<Item = Result<SpecOption<'a>, OpenError>> {
        self.rest.split(',').skip(1).map(str::trim).map(move |whole| {
            let (name, value) = whole.split_once('=').ok_or_else(|| self.bad(whole, known))?;
            Ok(SpecOption { whole, name, value })
        })
    }

    /// Returns the error for an invalid part; `expected` describes what is valid there.
    pub(super) fn bad(&self, item: &str, expected: &'static str) -> OpenError {
        OpenError::BadSpec { spec: self.whole.to_owned(), item: item.to_owned(), expected }
    }
}

/// Returns `text` if it can be the name of an interface.
#[cfg(feature = "kernel-host")]
pub(crate) fn interface_name(text: &str) -> Option<&str> {
    let is_fine = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b'=';
    (!text.is_empty() && text.len() < IFNAMSIZ && text.bytes().all(is_fine)).then_some(text)
}

/// Size of an interface name in bytes, including the zero at its end.
#[cfg(feature = "kernel-host")]
const IFNAMSIZ: usize = 16;

/// Checks that each text displays as the canonical form next to it, and that both parse to the same value.
#[cfg(test)]
#[track_caller]
pub(super) fn check_spec<T>(cases: &[(&str, &str)])
where
    T: std::str::FromStr<Err = OpenError> + std::fmt::Display + std::fmt::Debug + PartialEq,
{
    for (text, canonical) in cases {
        let spec: T = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(spec.to_string(), *canonical);
        assert_eq!(canonical.parse::<T>().unwrap(), spec);
    }
}

/// Checks that each text is refused, with all these parts in the message.
#[cfg(test)]
#[track_caller]
pub(super) fn check_spec_errors<T>(cases: &[(&str, &[&str])])
where
    T: std::str::FromStr<Err = OpenError>,
{
    for (text, parts) in cases {
        let Err(error) = text.parse::<T>() else { panic!("`{text}` was taken") };
        let error = error.to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "`{text}` gave: {error}");
    }
}

#[cfg(all(test, feature = "kernel-host"))]
mod tests {
    use super::interface_name;

    #[test]
    fn names_are_checked() {
        for good in ["eth0", "enp3s0f1np1", "eth0.100", "v-1:0"] {
            assert_eq!(interface_name(good), Some(good));
        }
        for bad in ["", "a b", "sixteen-letters-", "../x", "queue=1"] {
            assert_eq!(interface_name(bad), None, "{bad}");
        }
    }
}
