//! What a store is made of, for whoever looks at its servers one by one, such as `tidegate doctor`.
//!
//! Asks once, those who know: sentinels where their primary is, servers of a cluster who serves what.
//! Every one is waited for, because here it matters who is silent. Judges nothing, keeps nothing up to
//! date, and enters no server that counts: that is for a [`Console`].

use super::access::{Access, Place};
use super::address::Address;
use super::cluster::census;
use super::console::Console;
use super::fault::Fault;
use super::link::RedisConfig;
use super::probe;
use super::sentinel::{Answer, Sentinels};

/// The servers of a store, and what is known of them from outside.
#[derive(Clone, Debug)]
pub enum Layout {
    /// One server.
    One(Site),
    /// A primary that sentinels watch.
    Watched {
        /// The one that most of them name, or why there is none.
        primary: Result<Site, Fault>,
        /// What each says, in the order they were written.
        sentinels: Vec<Witness>,
    },
    /// A cluster.
    Cluster {
        /// Those that serve slots.
        primaries: Vec<Site>,
        /// How many slots belong to nobody.
        unowned: usize,
        /// Servers that were written and do not tell of the cluster, and why.
        silent: Vec<(String, Fault)>,
    },
}

/// What a sentinel says.
#[derive(Clone, Debug)]
pub struct Witness {
    /// Where it is.
    pub sentinel: String,
    /// Where it says the primary is; nothing if it knows none of that name.
    pub names: Result<Option<String>, Fault>,
}

/// A server of a store: where it is, and which keys it has.
#[derive(Clone, Debug)]
pub struct Site {
    pub(super) place: Place,
    pub(super) access: Access,
    pub(super) share: Share,
}

/// The keys that a server has.
#[derive(Clone, Debug)]
pub(super) struct Share {
    /// What is between braces in keys that it has; nothing where it has all.
    pub(super) tag: Option<String>,
    /// How many slots it serves; of a server that is alone, none.
    pub(super) slots: usize,
    /// Where nodes sign in.
    pub(super) register: Vec<u8>,
    /// Whether the secret is here.
    pub(super) has_secret: bool,
}

impl Layout {
    /// Finds out what the store is made of.
    ///
    /// # Errors
    /// When the address cannot be read, or no server of a cluster tells who serves what.
    pub async fn find(config: &RedisConfig) -> Result<Layout, Fault> {
        match Address::read(&config.url)? {
            Address::One { at, access } => Ok(Layout::One(Site::alone(at, access))),
            Address::Sentinels {
                at,
                name,
                sentinels,
                servers,
            } => {
                let patience = config.connect_timeout;
                let led = Sentinels::new(&at, &name, &sentinels, &servers, patience);
                Ok(watched(&led).await)
            }
            Address::Cluster { at, access } => census::take(&at, &access, config).await,
        }
    }
}

async fn watched(led: &Sentinels) -> Layout {
    let (heard, primary) = led.hear().await;
    let witness = |(sentinel, names): (Place, Answer)| Witness {
        sentinel: sentinel.to_string(),
        names: names.map(|place| place.map(|place| place.to_string())),
    };
    Layout::Watched {
        primary: primary.map(|place| Site::alone(place, led.servers().clone())),
        sentinels: heard.into_iter().map(witness).collect(),
    }
}

impl Site {
    fn alone(place: Place, access: Access) -> Site {
        let share = Share {
            tag: None,
            slots: 0,
            register: probe::NODES.to_vec(),
            has_secret: true,
        };
        Site {
            place,
            access,
            share,
        }
    }

    /// Where it is, without user and password.
    pub fn address(&self) -> String {
        self.place.to_string()
    }

    /// How many slots of a cluster it serves.
    pub fn slots(&self) -> usize {
        self.share.slots
    }

    /// Connects, and makes sure that somebody answers.
    ///
    /// # Errors
    /// When nobody does, or we are not let in.
    pub async fn open(&self, config: &RedisConfig) -> Result<Console, Fault> {
        Console::open(self, config).await
    }
}
