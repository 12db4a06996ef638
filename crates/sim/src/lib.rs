//! Simulated nodes of Tidegate on a virtual clock, a model store with every kind of fault, and checkers that
//! find both over-admission and under-admission.
//!
//! The nodes run the shipped limiter and resilience code. Only the clock, the scheduler, the network and the
//! store are simulated. A run depends on its seed alone.

pub mod check;
pub mod executor;
mod faults;
pub mod history;
pub mod model;
mod permit_clients;
mod recording;
mod reservation_clients;
mod reversed_order;
mod rng;
pub mod scenario;
mod traffic;
mod variant;
pub mod world;

pub use rng::Rng;
pub use variant::Variant;
