//! A real Envoy with the file of `docs/envoy`, between a client and a backend, asking Tidegate.

use tidegate_parts::{Make, ReverseProxy, Upstream, free_port, moved};

use crate::http::Client;

/// An Envoy before `backend` that asks at these ports.
fn envoy(backend: &Upstream, services: [u16; 2], edits: &[(&str, &str)]) -> ReverseProxy {
    let ports = [
        (3000, backend.address().port()),
        (8081, services[0]),
        (8083, services[1]),
    ];
    let ports = ports.map(moved).map(|[_, value]| value);
    let ports = ports.iter().map(|(from, to)| (&**from, &**to));
    let edits: Vec<_> = ports.chain(edits.iter().copied()).collect();
    ReverseProxy::start(Make::Envoy, &edits)
}

#[test]
fn everything_passes_while_nobody_answers() {
    let backend = Upstream::start();
    let envoy = envoy(&backend, [free_port(), free_port()], &[]);
    let reply = Client::connect(envoy.address()).request("GET", "/a", &[("x-user", "ada")], "");
    assert_eq!((reply.status, &*reply.body), (200, "backend"), "{reply:?}");
    assert_eq!(backend.take().len(), 1);
}
