//! Warnings at the start about settings that leave the service open to others.
//!
//! Two kinds: listeners that other machines reach without authentication, and files that any user of this machine
//! may read or write. Each is one line with its cure. No setting is rejected: a firewall or a container may do what
//! the settings do not.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tracing::warn;

use crate::config::{ListenAddress, ServerSettings};

const OTHERS_READ: u32 = 0o004;
const OTHERS_WRITE: u32 = 0o002;

/// Logs every warning. `keys` is the keys file that the rules name.
pub(super) fn log(settings: &ServerSettings, config: Option<&Path>, keys: Option<&Path>) {
    for warning in open_listeners(settings).into_iter().chain(open_files(settings, config, keys)) {
        warn!("{warning}");
    }
}

/// Clients of these listeners can spend the limits of others, and read what is left of them.
fn open_listeners(settings: &ServerSettings) -> Vec<String> {
    let authenticated = |tls: &crate::config::listener_options::ListenerTlsFiles| tls.client_authorities.is_some();
    let grpc_open = !settings.grpc_tls.as_ref().is_some_and(authenticated);
    let open = |flag: &str, address: &ListenAddress, cure: &str| {
        (!address.is_local())
            .then(|| format!("{flag} {address} can be reached from other machines without authentication; {cure}"))
    };
    let http = open("--http", &settings.http, "let only your own services reach it, or listen on loopback");
    let grpc = open(
        "--grpc",
        &settings.grpc,
        "set --grpc-client-ca, let only your own proxies reach it, or listen on loopback",
    );
    http.into_iter().chain(grpc.filter(|_| grpc_open)).collect()
}

fn open_files(settings: &ServerSettings, config: Option<&Path>, keys: Option<&Path>) -> Vec<String> {
    let tls = settings.grpc_tls.as_ref();
    let secrets = [
        ("--secret-file", settings.secret_file.as_deref()),
        ("--admin-token-file", settings.admin_token_file.as_deref()),
        ("--resp-password-file", settings.resp_password_file.as_deref()),
        ("--grpc-key", tls.map(|tls| &*tls.key)),
    ];
    let trusted = [
        ("--config", config),
        ("--rules", settings.rules.path.as_deref()),
        ("the keys file", keys),
        ("--grpc-cert", tls.map(|tls| &*tls.certificate)),
        ("--grpc-client-ca", tls.and_then(|tls| tls.client_authorities.as_deref())),
    ];
    let paths = secrets.into_iter().filter_map(|(what, path)| Some((what, path?)));
    let secrets = paths.filter(|(_, path)| mode(path) & (OTHERS_READ | OTHERS_WRITE) != 0).map(|(what, path)| {
        let path = path.display();
        format!("{what} {path} is a secret that every user of this machine can read or write; chmod 600 {path}")
    });
    let paths = trusted
        .into_iter()
        .flat_map(|(what, path)| path.map(writable).unwrap_or_default().into_iter().map(move |path| (what, path)));
    let trusted = paths.map(|(what, path)| {
        let path = path.display();
        format!("{what} {path} can be written by every user of this machine, who can then change decisions; chmod o-w {path}")
    });
    secrets.chain(trusted).collect()
}

/// The file, or the folder and the files in it, if other users may write there.
fn writable(path: &Path) -> Vec<PathBuf> {
    let inside = fs::read_dir(path).into_iter().flatten().flatten();
    let inside = inside.map(|entry| entry.path()).filter(|path| path.is_file());
    let all = std::iter::once(path.to_owned()).chain(inside);
    all.filter(|path| mode(path) & OTHERS_WRITE != 0).collect()
}

/// A file that cannot be read is reported by the code that reads it.
fn mode(path: &Path) -> u32 {
    fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SettingsLayer;

    fn settings(change: impl FnOnce(&mut SettingsLayer)) -> ServerSettings {
        let mut layer = SettingsLayer::default();
        change(&mut layer);
        layer.resolve().unwrap()
    }

    fn file(folder: &Path, name: &str, mode: u32) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn listeners_beyond_loopback_are_warned_of_unless_clients_authenticate() {
        let warnings = |http: &str, grpc: &str, known: bool| {
            let settings = settings(|layer| {
                layer.http = Some(http.parse().unwrap());
                layer.grpc = Some(grpc.parse().unwrap());
                if known {
                    layer.grpc_cert = Some("cert".into());
                    layer.grpc_key = Some("key".into());
                    layer.grpc_client_ca = Some("ca".into());
                }
            });
            open_listeners(&settings)
        };
        assert!(warnings("8080", "unix:/run/tg.sock", false).is_empty());
        assert!(warnings("off", "127.0.0.1:1", false).is_empty());
        let both = warnings(":8080", "0.0.0.0:8081", false);
        assert_eq!(both.len(), 2);
        assert!(both[0].starts_with("--http 0.0.0.0:8080 can be reached"), "{both:?}");
        assert!(both[1].contains("set --grpc-client-ca"), "{both:?}");
        assert_eq!(warnings(":8080", ":8081", true).len(), 1);
    }

    #[test]
    fn secrets_that_others_read_and_files_that_others_write_are_warned_of() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let secret = |mode| {
            let path = file(folder, "secret", mode);
            open_files(&settings(|layer| layer.secret_file = Some(path)), None, None)
        };
        assert!(secret(0o600).is_empty() && secret(0o640).is_empty());
        let warnings = secret(0o644);
        assert!(warnings.len() == 1 && warnings[0].contains("chmod 600"), "{warnings:?}");

        let rules = file(folder, "rules.yaml", 0o644);
        let keys = file(folder, "keys.txt", 0o644);
        let warnings_for = |keys: &Path| {
            let settings = settings(|layer| layer.rules = Some(rules.clone()));
            open_files(&settings, None, Some(keys))
        };
        assert!(warnings_for(&keys).is_empty(), "other users may read them");
        file(folder, "rules.yaml", 0o666);
        file(folder, "keys.txt", 0o602);
        let both = warnings_for(&keys);
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(both[0].starts_with("--rules ") && both[1].starts_with("the keys file "), "{both:?}");
    }

    #[test]
    fn files_inside_a_folder_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        file(folder.path(), "a.yaml", 0o644);
        let other = file(folder.path(), "b.yaml", 0o646);
        assert_eq!(writable(folder.path()), [other]);
    }
}
