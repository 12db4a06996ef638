//! The store as a whole, whatever it is: one server, the primary that sentinels know of, or a cluster
//! whose primaries are its parts.

use std::fmt;
use std::sync::Arc;

use redis::{Cmd, Value};
use tidegate_core::store::{PartId, Parts, Unacknowledged};
use tidegate_core::subject::Fingerprint;

use super::address::Address;
use super::cluster::{Branch, Cluster, slot_of_subject};
use super::fault::Fault;
use super::gate::Gate;
use super::link::{Errand, Link, RedisConfig};
use super::probe::NODES;
use super::redirect::Entry;
use super::scripts::Loaded;
use super::sentinel::Sentinels;
use super::way::Way;
use super::{RedisStore, route, shipped};

/// The only part of a store that has one.
const ONLY: PartId = PartId(0);

/// Counters in Redis or Valkey. Clones are handles to the same.
#[derive(Clone)]
pub struct Redis(Kind);

#[derive(Clone)]
enum Kind {
    One { link: Arc<Link>, store: RedisStore },
    Cluster(Arc<Cluster>),
}

impl Redis {
    /// A store that begins to connect, and goes on until it does. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// When the address cannot be read.
    pub fn open(config: &RedisConfig) -> Result<Self, Fault> {
        Self::running(config, shipped())
    }

    pub(super) fn running(
        config: &RedisConfig,
        scripts: impl Into<Arc<[Loaded]>>,
    ) -> Result<Self, Fault> {
        let scripts = scripts.into();
        Ok(Redis(match Address::read(&config.url)? {
            Address::Cluster { at, access } => {
                for place in &at {
                    access.client(place)?; // refuses what could never be connected to
                }
                Kind::Cluster(Cluster::open(at, access, config, scripts))
            }
            Address::One { at, access } => {
                Self::along(&route::Route::Fixed { at, access }, config, &scripts)?
            }
            Address::Sentinels {
                at,
                name,
                sentinels,
                servers,
            } => {
                let patience = config.connect_timeout;
                let led = Sentinels::new(&at, &name, &sentinels, &servers, patience);
                Self::along(&route::Route::Led(Arc::new(led)), config, &scripts)?
            }
        }))
    }

    fn along(
        route: &route::Route,
        config: &RedisConfig,
        scripts: &Arc<[Loaded]>,
    ) -> Result<Kind, Fault> {
        let gate = Arc::new(Gate::new());
        let link = Arc::new(Link::open(route, config, scripts, &gate)?);
        let store = RedisStore::on(Way::Straight(Arc::clone(&link)), Arc::default());
        Ok(Kind::One { link, store })
    }

    /// The only part of a store that is one server.
    pub(super) fn only(self) -> Result<RedisStore, Fault> {
        match self.0 {
            Kind::One { store, .. } => Ok(store),
            Kind::Cluster(_) => {
                let cure = "write redis://HOST:PORT or unix:PATH";
                Err(Fault::of_operator("several servers", "", cure))
            }
        }
    }

    /// Waits until a server can be asked. For start-up and tests: no verb waits for that.
    pub async fn ready(&self) {
        match &self.0 {
            Kind::One { link, .. } => link.ready().await,
            Kind::Cluster(cluster) => cluster.ready().await,
        }
    }

    /// Counts nothing until [`Redis::unlock`]: a node that does not know the secret of the others would
    /// count their clients under other names.
    pub fn lock(&self) {
        self.gate().lock();
    }

    /// Counts from now on.
    pub fn unlock(&self) {
        self.gate().unlock();
    }

    /// Whether scripts are locked out, see [`Redis::lock`].
    pub fn is_locked(&self) -> bool {
        !self.gate().is_open()
    }

    /// Why there is no connection to a server, if there is none.
    pub fn last_fault(&self) -> Option<Fault> {
        match &self.0 {
            Kind::One { link, .. } => link.last_fault(),
            Kind::Cluster(cluster) => cluster.last_fault(),
        }
    }

    /// Why durable charges are not acknowledged at present, by one server or another.
    pub fn unacknowledged(&self) -> Option<Unacknowledged> {
        match &self.0 {
            Kind::One { link, .. } => link.safe.why(),
            Kind::Cluster(cluster) => cluster.unacknowledged(),
        }
    }

    /// How often a cluster was asked who serves what.
    pub fn surveys(&self) -> u64 {
        match &self.0 {
            Kind::One { .. } => 0,
            Kind::Cluster(cluster) => cluster.surveys(),
        }
    }

    /// Runs a plain command on its only key, wherever that is.
    pub(super) async fn command(&self, key: &str, command: &Cmd) -> Result<Value, Fault> {
        match &self.0 {
            Kind::One { link, .. } => link.send(Errand::Command(command), Entry::Plain).await.0,
            Kind::Cluster(cluster) => cluster.command(key.as_bytes(), command).await,
        }
    }

    /// The keys of the registers of nodes, one for each primary.
    pub(super) fn registers(&self) -> Vec<String> {
        let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        match &self.0 {
            Kind::One { .. } => vec![text(NODES)],
            Kind::Cluster(cluster) => {
                let branch = |part| Branch {
                    cluster: Arc::clone(cluster),
                    part,
                };
                let parts = cluster.ids().into_iter();
                let registers = parts.filter_map(|part| branch(part).register(&[]));
                registers.map(|register| text(&register.key())).collect()
            }
        }
    }

    fn gate(&self) -> &Gate {
        match &self.0 {
            Kind::One { link, .. } => link.gate(),
            Kind::Cluster(cluster) => cluster.gate(),
        }
    }
}

impl Parts for Redis {
    type Part = RedisStore;

    fn part_of(&self, subject: Fingerprint) -> PartId {
        match &self.0 {
            Kind::One { .. } => ONLY,
            Kind::Cluster(cluster) => cluster.part_of(slot_of_subject(subject)),
        }
    }

    fn part(&self, id: PartId) -> Option<RedisStore> {
        match &self.0 {
            Kind::One { store, .. } => (id == ONLY).then(|| store.clone()),
            Kind::Cluster(cluster) => {
                let memo = Arc::clone(&cluster.seat(id)?.memo);
                let branch = Branch {
                    cluster: Arc::clone(cluster),
                    part: id,
                };
                Some(RedisStore::on(Way::Branch(branch), memo))
            }
        }
    }

    fn ids(&self) -> Vec<PartId> {
        match &self.0 {
            Kind::One { .. } => vec![ONLY],
            Kind::Cluster(cluster) => cluster.ids(),
        }
    }
}

/// Never prints an address or a password.
impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Kind::One { .. } => "one",
            Kind::Cluster(_) => "cluster",
        };
        f.debug_struct("Redis")
            .field("kind", &kind)
            .finish_non_exhaustive()
    }
}
