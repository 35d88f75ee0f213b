//! Congestion control around an algorithm.
//!
//! The algorithms and their interface are the crate `roce-congestion`. Here are the pacer, the window, what
//! replaces an algorithm after a loss, the notification point, and the limit of the whole engine.

mod after_loss;
mod control;
mod line;
mod notification;
mod pacer;
mod reads;

pub use roce_congestion::{
    Ack, Algorithm, CnpScope, Congestion, CongestionControl, CongestionError, Custom, CustomError, Dcqcn,
    DcqcnForm, DcqcnParameters, Dctcp, DctcpParameters, EvenPull, Feedback, FixedRate, Hpcc, HpccParameters,
    Loss, NotificationPoint, Nscc, NsccParameters, Observation, Parameter, ParameterError, ParameterRange,
    PathFeedback, PathParameters, PathPolicy, PathSet, PathStart, Paths, PathsError, Penalty, Policy,
    PowerTcp, PowerTcpParameters, Pull, PullPolicy, PullStart, Pulled, Pulls, Rate, Recycle, Reps,
    RepsParameters, RoundRobin, Start, Swift, SwiftParameters, Telemetry, TelemetryHop, ThetaPowerTcp,
    Timely, TimelyForm, TimelyParameters, Trim, parameters,
};

pub(crate) use after_loss::{AfterLoss, LostAfter};
pub(crate) use control::{Control, SentRequest};
pub(crate) use line::LineLimit;
pub(crate) use notification::{CnpPace, Leaving, Notifier};
pub(crate) use reads::{ReadPace, ReadResponse, ReadTurn};
