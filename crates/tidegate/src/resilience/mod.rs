pub mod clock_watch;
