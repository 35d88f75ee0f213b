//! The congestion control of a queue pair, as a value and as text.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::parameters::{self, NoParameters, ParameterError, Parameters};
use crate::units::{self, UnitError};
use crate::{
    CongestionControl, Custom, Dcqcn, DcqcnParameters, Dctcp, DctcpParameters, FixedRate, Hpcc,
    HpccParameters, NotificationPoint, Nscc, NsccParameters, PowerTcp, PowerTcpParameters, Rate, Start,
    Swift, SwiftParameters, ThetaPowerTcp, Timely, TimelyParameters,
};

/// Declares the algorithms with parameters: everything that depends on which algorithms there are follows
/// from this table.
macro_rules! algorithms {
    ($($(#[doc = $doc:literal])+ $variant:ident($parameters:ty) = $name:literal, $algorithm:ident;)+) => {
        /// An algorithm with its parameters.
        #[derive(Clone, Default)]
        pub enum Algorithm {
            /// No control: packets leave as fast as the device and the engine's window allow.
            #[default]
            None,
            /// A constant rate.
            Fixed(Rate),
            $($(#[doc = $doc])+ $variant($parameters),)+
            /// An algorithm from another crate; see [`Algorithm::custom`].
            Custom(Custom<Start, Box<dyn CongestionControl>>),
        }

        impl Algorithm {
            /// The names of the algorithms of this crate, as text that [`Congestion::parse`] accepts; `fixed`
            /// also needs a rate.
            pub const NAMES: [&'static str; 2 + [$($name),+].len()] = ["none", "fixed", $($name),+];

            /// Returns the algorithm with this name and its default parameters. `fixed` has no default.
            fn with_defaults(name: &str) -> Option<Self> {
                Some(match name {
                    "none" => Self::None,
                    $($name => Self::$variant(<$parameters>::default()),)+
                    _ => return None,
                })
            }

            /// Returns the name of the algorithm.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    Self::None => "none",
                    Self::Fixed(_) => "fixed",
                    $(Self::$variant(_) => $name,)+
                    Self::Custom(custom) => custom.name(),
                }
            }

            /// Creates an instance for a queue pair, or returns `None` without control.
            #[must_use]
            pub fn make(&self, start: &Start) -> Option<Box<dyn CongestionControl>> {
                Some(match self {
                    Self::None => return None,
                    Self::Fixed(rate) => Box::new(FixedRate(*rate)),
                    $(Self::$variant(parameters) => Box::new($algorithm::new(parameters, start)),)+
                    Self::Custom(custom) => custom.make(start),
                })
            }

            /// Returns the parameters that text can set, each with its value as text. The list is empty for
            /// an algorithm without such parameters.
            #[must_use]
            pub fn parameters(&self) -> Vec<(&'static crate::Parameter, String)> {
                match self {
                    $(Self::$variant(parameters) => parameters.parameters(),)+
                    Self::Custom(custom) => custom.parameters(),
                    Self::None | Self::Fixed(_) => Vec::new(),
                }
            }

            fn settable(&mut self) -> Option<&mut dyn Settable> {
                match self {
                    $(Self::$variant(parameters) => Some(parameters),)+
                    Self::Custom(custom) => Some(custom),
                    Self::None | Self::Fixed(_) => None,
                }
            }
        }

        impl PartialEq for Algorithm {
            fn eq(&self, other: &Self) -> bool {
                match (self, other) {
                    (Self::None, Self::None) => true,
                    (Self::Fixed(own), Self::Fixed(other)) => own == other,
                    $((Self::$variant(own), Self::$variant(other)) => own == other,)+
                    (Self::Custom(own), Self::Custom(other)) => own == other,
                    _ => false,
                }
            }
        }

        /// The form that [`Congestion::parse`] accepts.
        impl fmt::Display for Algorithm {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Self::None => formatter.write_str(self.name()),
                    Self::Custom(custom) => custom.fmt(formatter),
                    Self::Fixed(rate) => write!(formatter, "fixed:{}bps", rate.get()),
                    $(Self::$variant(parameters) => write!(formatter, "{}:{parameters}", $name),)+
                }
            }
        }
    };
}

algorithms! {
    /// DCQCN.
    Dcqcn(DcqcnParameters) = "dcqcn", Dcqcn;
    /// DCTCP: a window that is cut in proportion to marks.
    Dctcp(DctcpParameters) = "dctcp", Dctcp;
    /// Swift: a window that keeps the round trip at a target.
    Swift(SwiftParameters) = "swift", Swift;
    /// TIMELY: a rate that follows the gradient of the round trip.
    Timely(TimelyParameters) = "timely", Timely;
    /// HPCC: a window from in-band telemetry that keeps the utilization of links below 100 %.
    Hpcc(HpccParameters) = "hpcc", Hpcc;
    /// PowerTCP: a window from in-band telemetry, based on the power of queues.
    PowerTcp(PowerTcpParameters) = "powertcp", PowerTcp;
    /// Theta-PowerTCP: a window from round trips, based on the power of queues.
    ThetaPowerTcp(PowerTcpParameters) = "theta-powertcp", ThetaPowerTcp;
    /// NSCC of Ultra Ethernet: a window from marks, round trips and trimmed packets.
    Nscc(NsccParameters) = "nscc", Nscc;
}

impl Algorithm {
    /// Returns an algorithm that this crate does not contain.
    pub fn custom(
        name: &'static str,
        make: impl Fn(&Start) -> Box<dyn CongestionControl> + Send + Sync + 'static,
    ) -> Self {
        Self::custom_with(name, NoParameters, move |_, start| make(start))
    }

    /// Returns an algorithm that this crate does not contain, with parameters that text can set, such as
    /// `mine:step=20,period=100`. Their type is usually one that [`parameters!`](crate::parameters!) defines.
    /// None may be called `echo`, and none like a parameter of [`NotificationPoint`], which it would hide.
    pub fn custom_with<P: Parameters + Clone + Send + Sync + 'static>(
        name: &'static str,
        parameters: P,
        make: impl Fn(&P, &Start) -> Box<dyn CongestionControl> + Send + Sync + 'static,
    ) -> Self {
        Self::Custom(Custom::new(name, parameters, make))
    }
}

impl Eq for Algorithm {}

impl fmt::Debug for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl Settable for Custom<Start, Box<dyn CongestionControl>> {
    fn take(&mut self, name: &str, value: &str) -> Result<bool, ParameterError> {
        Custom::take(self, name, value)
    }
    fn table(&self) -> &'static [crate::Parameter] {
        Custom::table(self)
    }
}

/// Parameters of any algorithm.
trait Settable {
    fn take(&mut self, name: &str, value: &str) -> Result<bool, ParameterError>;
    fn table(&self) -> &'static [crate::Parameter];
}

impl<P: Parameters> Settable for P {
    fn take(&mut self, name: &str, value: &str) -> Result<bool, ParameterError> {
        Parameters::take(self, name, value)
    }
    fn table(&self) -> &'static [crate::Parameter] {
        P::TABLE
    }
}

/// The part of a queue pair in congestion control.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Congestion {
    /// The algorithm that sets the rate. RC and UC only; data with an algorithm is sent as ECN-capable.
    pub algorithm: Algorithm,
    /// Whether acknowledgements echo marks (in their BECN bit) instead of notifications, and every packet
    /// requests an acknowledgement. This is the behaviour of the simulators on ns-3, for comparison with
    /// them. No standard defines it, so it must be set at both ends. RC only.
    pub echo: bool,
}

/// An error in the text of a congestion control.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CongestionError {
    /// The algorithm does not exist.
    #[error("there is no congestion control {name:?}; there are {known}")]
    UnknownAlgorithm {
        /// The given name.
        name: String,
        /// The existing algorithms.
        known: String,
    },
    /// The preset does not exist.
    #[error("there is no preset {name:?} of {algorithm}; there are {known}")]
    UnknownPreset {
        /// The given name.
        name: String,
        /// The algorithm.
        algorithm: &'static str,
        /// The existing presets.
        known: String,
    },
    /// The text after `fixed:` is not a rate.
    #[error("invalid rate of fixed")]
    Rate(#[from] UnitError),
    /// A parameter is wrong.
    #[error("invalid parameter of {algorithm}")]
    Parameter {
        /// The algorithm.
        algorithm: &'static str,
        /// The error of the parameter.
        #[source]
        error: ParameterError,
    },
}

impl Congestion {
    /// Returns a value without an algorithm and without echo.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Returns a value with this algorithm, without echo.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        Self { algorithm, echo: false }
    }

    /// Reads `NAME[:PRESET][,name=value…]`, for example `dcqcn:paper,rpg_ai_rate=40`, or `fixed:RATE`. A
    /// colon or a comma may separate any two parts. Parameters of the notification point
    /// ([`NotificationPoint`]) and `echo=1` may appear among the others.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not valid; the error names the wrong part and the expected one.
    pub fn parse(text: &str) -> Result<(Self, NotificationPoint), CongestionError> {
        Self::parse_among(text, &[])
    }

    /// Reads text like [`Self::parse`], but also accepts the names in `own`: algorithms that this crate does
    /// not contain ([`Algorithm::custom`]). These names take precedence.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::parse`].
    pub fn parse_among(text: &str, own: &[Algorithm]) -> Result<(Self, NotificationPoint), CongestionError> {
        let mut pieces = text.split([':', ',']);
        let name = pieces.next().unwrap_or_default();
        let own_algorithm = own.iter().find(|algorithm| algorithm.name() == name).cloned();
        let algorithm = match own_algorithm.or_else(|| Algorithm::with_defaults(name)) {
            Some(algorithm) => algorithm,
            None if name == "fixed" => Algorithm::Fixed(pieces.next().unwrap_or_default().parse()?),
            None => {
                let known = own.iter().map(Algorithm::name).chain(Algorithm::NAMES);
                let known = known.collect::<Vec<&str>>().join(", ");
                return Err(CongestionError::UnknownAlgorithm { name: name.to_owned(), known });
            }
        };
        let mut congestion = Self::new(algorithm);
        let mut point = NotificationPoint::default();
        for (index, piece) in pieces.enumerate() {
            if index == 0 && !piece.contains('=') && congestion.set_preset(&mut point, piece)? {
                continue;
            }
            congestion.set_parameter(&mut point, piece)?;
        }
        Ok((congestion, point))
    }

    fn set_preset(&mut self, point: &mut NotificationPoint, name: &str) -> Result<bool, CongestionError> {
        let Algorithm::Dcqcn(parameters) = &mut self.algorithm else { return Ok(false) };
        match (DcqcnParameters::preset(name), NotificationPoint::preset(name)) {
            (Some(reaction), Some(notification)) => (*parameters, *point) = (reaction, notification),
            _ => {
                return Err(CongestionError::UnknownPreset {
                    name: name.to_owned(),
                    algorithm: "dcqcn",
                    known: DcqcnParameters::PRESETS.join(", "),
                });
            }
        }
        Ok(true)
    }

    fn set_parameter(&mut self, point: &mut NotificationPoint, piece: &str) -> Result<(), CongestionError> {
        let algorithm = self.algorithm.name();
        let wrong = |error| CongestionError::Parameter { algorithm, error };
        let (name, value) = parameters::split(piece).map_err(wrong)?;
        match (name, value) {
            ("echo", "0" | "1") => self.echo = value == "1",
            ("echo", _) => {
                return Err(wrong(ParameterError::OutOfRange {
                    name: "echo",
                    value: value.to_owned(),
                    range: crate::ParameterRange::Number(0, 1),
                    unit: "",
                }));
            }
            _ => {
                let own = self.algorithm.settable();
                let table = own.as_ref().map_or([].as_slice(), |own| own.table());
                let taken = own.map_or(Ok(false), |own| own.take(name, value)).map_err(wrong)?
                    || Settable::take(point, name, value).map_err(wrong)?;
                if !taken {
                    let error = parameters::unknown(name, &[table, NotificationPoint::PARAMETERS]);
                    return Err(wrong(error));
                }
            }
        }
        Ok(())
    }
}

/// Reads a rate like [`units::rate`], such as `10G`, from 1 bit per second up to 1,000 Tbps.
impl core::str::FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let bits = units::rate(text)?;
        if (1..1_000_000_000_000_000).contains(&bits) {
            Ok(Self::bits_per_second(bits))
        } else {
            Err(UnitError::rate(text))
        }
    }
}
