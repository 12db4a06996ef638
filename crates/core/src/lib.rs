//! The pure core of Tidegate: units, algorithms, the text of a [`rate`], and the [`store`] port.
//!
//! Dependencies point one way: `units <- algorithms <- rate, store`. Rules, requests and decisions are in `tidegate-rules`,
//! stores and the limiter in `tidegate`.
//!
//! Nothing here reads a clock, touches a file, opens a socket or needs a runtime. Every input of a decision is an
//! argument, so tests, simulator and production run the same code.

pub mod algorithms;
pub mod invariants;
pub mod rate;
pub mod rule_options;
mod siphash;
pub mod source;
pub mod store;
pub mod subject;
#[doc(hidden)] // for the crates of this workspace, not a promise
pub mod sweep;
pub mod units;

/// Declares an enum whose values have names: in files, on the wire or in metrics.
#[doc(hidden)] // for the crates of this workspace, not a promise
#[macro_export]
macro_rules! named_enum {
    ($(#[$meta:meta])* $visibility:vis enum $name:ident { $($(#[$doc:meta])* $value:ident = $text:literal,)* }) => {
        $(#[$meta])*
        $visibility enum $name { $($(#[$doc])* $value,)* }

        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$value),*];

            /// The name of the value.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$value => $text,)* }
            }
        }
    };
}
