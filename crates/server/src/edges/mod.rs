//! The doors: each speaks one protocol, asks the limiter, and knows neither stores nor the others.

pub(crate) mod http;
