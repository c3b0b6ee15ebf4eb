//! Users in SQLite, with argon2 hashes.

use std::{
    fmt,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
};

use argon2::{
    Argon2,
    password_hash::{PasswordHasher, PasswordVerifier, phc::PasswordHash},
};
use axum_login::{AuthUser, AuthnBackend};
use rusqlite::{Connection, OptionalExtension, Row};
use serde::Deserialize;
use tokio::task::spawn_blocking;

#[derive(Clone)]
pub struct User {
    pub email: String,
    id: i64,
    hash: String,
}

impl User {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            email: row.get(1)?,
            hash: row.get(2)?,
        })
    }
}

impl AuthUser for User {
    type Id = i64;

    fn id(&self) -> i64 {
        self.id
    }

    fn session_auth_hash(&self) -> &[u8] {
        self.hash.as_bytes() // a new password ends all sessions
    }
}

/// Without the hash.
impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Deserialize)]
pub struct Credentials {
    email: String,
    password: String,
}

#[derive(Clone)]
pub struct Backend {
    connection: Arc<Mutex<Connection>>,
}

/// For users that do not exist: the response takes as long as for those that do.
static NO_HASH: LazyLock<String> = LazyLock::new(|| hash("no password").unwrap_or_default());

impl Backend {
    pub fn open(database: &str) -> rusqlite::Result<Self> {
        let connection = Connection::open(database)?;
        // `NOCASE` compares letters of ASCII as the limiter does; see `LoginLimiter::with_normalizer` for others.
        connection.execute_batch(
            "CREATE TABLE IF NOT EXISTS users (
                id INTEGER PRIMARY KEY, email TEXT NOT NULL UNIQUE COLLATE NOCASE, hash TEXT NOT NULL
             ) STRICT",
        )?;
        Ok(Self {
            connection: Arc::new(Mutex::new(connection)),
        })
    }

    pub fn add(&self, email: &str, password: &str) -> Result<(), Box<dyn std::error::Error>> {
        let hash = hash(password)?;
        let add = "INSERT OR IGNORE INTO users (email, hash) VALUES (?1, ?2)";
        self.lock().execute(add, [email, &hash])?;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, credentials: &Credentials) -> rusqlite::Result<Option<User>> {
        let find = "SELECT id, email, hash FROM users WHERE email = ?1";
        let email = credentials.email.trim();
        let user = self
            .lock()
            .query_row(find, [email], User::read)
            .optional()?;
        let hash = user.as_ref().map_or(&*NO_HASH, |user| &user.hash);
        let is_correct = PasswordHash::new(hash).is_ok_and(|hash| {
            let password = credentials.password.as_bytes();
            Argon2::default().verify_password(password, &hash).is_ok()
        });
        Ok(user.filter(|_| is_correct))
    }
}

impl AuthnBackend for Backend {
    type User = User;
    type Credentials = Credentials;
    type Error = Arc<rusqlite::Error>;

    async fn authenticate(&self, credentials: Credentials) -> Result<Option<User>, Self::Error> {
        let backend = self.clone();
        // argon2 takes milliseconds of a core.
        let checked = spawn_blocking(move || backend.check(&credentials)).await;
        checked
            .unwrap_or(Err(rusqlite::Error::QueryReturnedNoRows))
            .map_err(Arc::new)
    }

    async fn get_user(&self, id: &i64) -> Result<Option<User>, Self::Error> {
        let find = "SELECT id, email, hash FROM users WHERE id = ?1";
        let user = self.lock().query_row(find, [id], User::read).optional();
        user.map_err(Arc::new)
    }
}

fn hash(password: &str) -> Result<String, argon2::password_hash::Error> {
    let hash = Argon2::default().hash_password(password.as_bytes())?;
    Ok(hash.to_string())
}
