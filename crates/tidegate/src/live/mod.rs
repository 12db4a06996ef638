//! Rules and keys that change while the service runs.
//!
//! [`Watch`] notices that a file or folder has changed, waits until it has come to rest and hands
//! its complete contents to a loader; [`Live`] holds what the loader made of them, for readers on
//! the request path. Kept true: only complete contents are handed over, only what the loader took
//! comes into force, and whatever goes wrong with the files, the last good value stays.
//!
//! The rules and the keys file are two watches, so that a new key does not compile the rules
//! again. Neither knows what the files mean.
//!
//! Read in this order: `pace` (when to look), `survey` (what is there), `snapshot` (what it
//! holds), `intake` (whether to hand it over), `watch` (the thread around them).

mod cell;
mod intake;
mod left_out;
mod pace;
mod retired;
mod snapshot;
mod state;
mod survey;
mod watch;

pub use cell::{Failure, Live, Versioned};
pub use left_out::left_out;
pub use pace::{Next, Pace, Settle};
pub use snapshot::{Part, PartReader, Snapshot};
pub use state::{State, Why};
pub use survey::{Limits, Pick};
pub use watch::{Bell, Target, Watch};
