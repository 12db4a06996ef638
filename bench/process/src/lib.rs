//! Processes under measurement: servers on a core of their own, the load on another, and the processor
//! time and memory of each.
//!
//! Knows nothing of what the servers do.

pub mod cpu;
mod resident;
mod server;

pub use server::ServerProcess;

/// Moves this thread, and what it starts from now on, to the core that servers leave alone. Where there
/// is only one core it stays.
pub fn move_load_to_its_core() {
    if let Some(second) = core_affinity::get_core_ids().unwrap_or_default().get(1) {
        core_affinity::set_for_current(*second);
    }
}
