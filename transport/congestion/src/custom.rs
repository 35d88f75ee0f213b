//! Algorithms, policies and rules of other crates, with their parameters.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::parameters::{self, List, Parameter, ParameterError, Parameters};

/// Something with a name that another crate contains, and that is made from a start `S`: an algorithm for
/// each queue pair, for example, or rules for each switch. Copies share the function that makes it.
///
/// Its text is `NAME` or `NAME:name=value,…`, as for the algorithms of this crate.
pub struct Custom<S, M> {
    name: &'static str,
    maker: Arc<dyn Maker<S, M>>,
}

/// The function of a [`Custom`], with parameters of any type.
trait Maker<S, M>: Send + Sync {
    fn make(&self, start: &S) -> M;
    fn table(&self) -> &'static [Parameter];
    fn list(&self) -> List;
    /// Returns a copy with one parameter changed, or `None` if no parameter has this name.
    fn with(&self, name: &str, value: &str) -> Result<Option<Arc<dyn Maker<S, M>>>, ParameterError>;
    /// The address of the function, which identifies it.
    fn function(&self) -> *const ();
}

/// A function that makes something from parameters and a start.
type Make<P, S, M> = dyn Fn(&P, &S) -> M + Send + Sync;

struct WithParameters<P, S, M> {
    parameters: P,
    make: Arc<Make<P, S, M>>,
}

impl<P, S, M> Maker<S, M> for WithParameters<P, S, M>
where
    P: Parameters + Clone + Send + Sync + 'static,
    S: 'static,
    M: 'static,
{
    fn make(&self, start: &S) -> M {
        (self.make)(&self.parameters, start)
    }

    fn table(&self) -> &'static [Parameter] {
        P::TABLE
    }

    fn list(&self) -> List {
        self.parameters.list()
    }

    fn with(&self, name: &str, value: &str) -> Result<Option<Arc<dyn Maker<S, M>>>, ParameterError> {
        let mut parameters = self.parameters.clone();
        if !parameters.take(name, value)? {
            return Ok(None);
        }
        Ok(Some(Arc::new(Self { parameters, make: self.make.clone() })))
    }

    fn function(&self) -> *const () {
        Arc::as_ptr(&self.make).cast()
    }
}

impl<S: 'static, M: 'static> Custom<S, M> {
    /// Returns something with this name and these parameters, which are usually of a type that
    /// [`parameters!`](crate::parameters!) defines.
    pub fn new<P: Parameters + Clone + Send + Sync + 'static>(
        name: &'static str,
        parameters: P,
        make: impl Fn(&P, &S) -> M + Send + Sync + 'static,
    ) -> Self {
        Self { name, maker: Arc::new(WithParameters { parameters, make: Arc::new(make) }) }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Makes one.
    #[must_use]
    pub fn make(&self, start: &S) -> M {
        self.maker.make(start)
    }

    /// Returns the parameters that text can set, each with its value as text.
    #[must_use]
    pub fn parameters(&self) -> List {
        self.maker.list()
    }

    /// Returns the table of the parameters.
    #[must_use]
    pub fn table(&self) -> &'static [Parameter] {
        self.maker.table()
    }

    /// Sets a parameter. Returns `false` if no parameter has this name.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is not in the range of the parameter.
    pub fn take(&mut self, name: &str, value: &str) -> Result<bool, ParameterError> {
        let changed = self.maker.with(name, value)?;
        Ok(changed.map(|maker| self.maker = maker).is_some())
    }
}

/// An error in the text of something of another crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CustomError {
    /// Nothing has this name.
    #[error("there is no {name:?}; {}{known}", if known.is_empty() { "the program adds none" } else { "there are " })]
    Unknown {
        /// The given name.
        name: String,
        /// The existing names, or nothing.
        known: String,
    },
    /// A parameter is wrong.
    #[error("invalid parameter of {name}")]
    Parameter {
        /// The name of what has the parameter.
        name: &'static str,
        /// The error of the parameter.
        #[source]
        error: ParameterError,
    },
}

impl<S: 'static, M: 'static> Custom<S, M> {
    /// Reads `NAME[:name=value,…]` with a name among these.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not valid; the error names the wrong part and the expected one.
    pub fn parse_among(text: &str, own: &[Self]) -> Result<Self, CustomError> {
        let (name, rest) = text.split_once([':', ',']).unwrap_or((text, ""));
        let Some(mut found) = own.iter().find(|own| own.name == name).cloned() else {
            let known = own.iter().map(Self::name).collect::<Vec<&str>>().join(", ");
            return Err(CustomError::Unknown { name: name.to_owned(), known });
        };
        for piece in rest.split(',').filter(|piece| !piece.is_empty()) {
            let (of, table) = (found.name, found.table());
            let wrong = |error| CustomError::Parameter { name: of, error };
            let (name, value) = parameters::split(piece).map_err(wrong)?;
            if !found.take(name, value).map_err(wrong)? {
                return Err(wrong(parameters::unknown(name, &[table])));
            }
        }
        Ok(found)
    }
}

impl<S, M> Clone for Custom<S, M> {
    fn clone(&self) -> Self {
        Self { name: self.name, maker: self.maker.clone() }
    }
}

/// Two are equal if one is a copy of the other, and their parameters are equal.
impl<S, M> PartialEq for Custom<S, M> {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.maker.function() == other.maker.function()
            && self.maker.list() == other.maker.list()
    }
}

impl<S, M> Eq for Custom<S, M> {}

impl<S, M> fmt::Display for Custom<S, M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)?;
        parameters::write_list(&self.maker.list(), ":", formatter)
    }
}

impl<S, M> fmt::Debug for Custom<S, M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}
