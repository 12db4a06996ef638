//! The README's recipe for nginx, run by a real nginx in front of a real backend.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::http::{Client, Reply};
use crate::server::{Server, wait_for};

const README: &str = include_str!("../../../../README.md");

const RULES: &str = "
version: 1
rules:
  - { name: api, match: { path: /api/**, method: GET }, by: ip, rate: 2/hour, algorithm: fixed-window }
";

/// An nginx that enforces `server`'s rules before a backend of ours.
struct Nginx {
    child: Child,
    address: SocketAddr,
    _dir: TempDir,
}

impl Nginx {
    fn before(backend: SocketAddr, server: &Server) -> Self {
        let recipe = README.split("```nginx\n").nth(1).unwrap();
        let recipe = recipe.split("```").next().unwrap();
        let recipe = recipe.replace("127.0.0.1:8080", &server.http.to_string());
        // A port that is free now may be taken before nginx has it; then another.
        wait_for("nginx to listen", || {
            Nginx::start(&recipe, backend, free_port())
        })
    }

    fn start(recipe: &str, backend: SocketAddr, address: SocketAddr) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().display();
        let config = format!(
            "daemon off; master_process off; pid {root}/pid; error_log stderr; events {{ }}
http {{
    access_log off;
    client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c;
    uwsgi_temp_path {root}/d; scgi_temp_path {root}/e;
    upstream backend {{ server {backend}; }}
    server {{
        listen {address};
        {recipe}
    }}
}}"
        );
        let file = dir.path().join("nginx.conf");
        std::fs::write(&file, config).unwrap();
        // Debian keeps it where only root looks.
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        let spawned = Command::new("sh")
            .args(["-c", "exec nginx -p \"$1\" -c \"$2\"", "sh"])
            .args([dir.path(), &file])
            .env("PATH", path)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut nginx = Nginx {
            child: spawned.unwrap(),
            address,
            _dir: dir,
        };
        loop {
            if let Ok(mut client) = Client::try_connect(address)
                && client.send("GET", "/", &[], "").is_ok()
                && client.receive().is_ok()
            {
                return Some(nginx);
            }
            if nginx.child.try_wait().unwrap().is_some() {
                let said = std::io::read_to_string(nginx.child.stderr.take().unwrap()).unwrap();
                assert!(
                    said.contains("Address already in use"),
                    "nginx is missing or does not take the recipe; `make test` installs it, by \
                     scripts/tools: {said}"
                );
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn get(&self, path: &str) -> Reply {
        Client::connect(self.address).request("GET", path, &[], "")
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// A backend that answers everything, for as long as the test runs.
fn backend() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let head = BufReader::new(&stream).lines().map_while(Result::ok);
            head.take_while(|line| !line.is_empty()).for_each(drop);
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 7\r\nconnection: close\r\n\r\nbackend";
            let _ = (&stream).write_all(answer.as_bytes());
        }
    });
    address
}

#[test]
fn the_recipe_for_nginx_lets_pass_what_may_and_answers_429_to_the_rest() {
    let server = Server::start(RULES);
    let nginx = Nginx::before(backend(), &server);
    for left in ["1", "0"] {
        let reply = nginx.get("/api/x?y=1");
        assert_eq!((reply.status, &*reply.body), (200, "backend"), "{reply:?}");
        let policy = "\"api\";q=2;w=3600";
        assert_eq!(reply.header("ratelimit-policy"), Some(policy));
        let ratelimit = reply.header("ratelimit").unwrap();
        let wanted = format!("\"api\";r={left};");
        assert!(ratelimit.starts_with(&wanted), "{ratelimit}");
        assert_eq!(reply.header("retry-after"), None);
    }
    let refused = nginx.get("/api/x");
    assert_eq!(refused.status, 429, "{refused:?}");
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=3_630).contains(&wait), "{wait}");
    assert!(
        refused
            .header("ratelimit")
            .unwrap()
            .starts_with("\"api\";r=0;")
    );
    // No rule is about this one, and a refusal of one path is none of another.
    let free = nginx.get("/other");
    assert_eq!((free.status, free.header("ratelimit")), (200, None));
    let deny = r#"tidegate_decisions_total{rule="api",edge="auth",outcome="deny",source="exact"}"#;
    assert_eq!(server.metric(deny), 1);
}
