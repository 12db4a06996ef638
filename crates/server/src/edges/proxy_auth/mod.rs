//! Sub-requests of a proxy: nginx `auth_request`, Traefik and Caddy forward auth, HAProxy by a script.
//!
//! `wire` reads the headers, `credentials` reads the API key among them, and `serve` responds. Denials are 429 unless
//! the URL sets another status: nginx turns every status except 401 and 403 into an error of its own. A blocked client
//! gets 403 in any case. The recipes are in `docs/proxies`.

mod credentials;
pub(crate) mod serve;
pub(crate) mod wire;
