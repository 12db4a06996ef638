//! Processes under measurement: servers on one core, the load on another, and the processor time and memory
//! of each.
//!
//! Knows nothing of the work of the servers.

pub mod cpu;
mod resident;
mod server;

pub use server::ServerProcess;

/// Pins this thread, and the threads it starts from now on, to the core without servers. With a single core
/// it stays.
pub fn move_load_to_its_core() {
    if let Some(second) = core_affinity::get_core_ids().unwrap_or_default().get(1) {
        core_affinity::set_for_current(*second);
    }
}
