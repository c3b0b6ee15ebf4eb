//! The addresses that a user has logged in from.

use super::{Admin, AdminError, Author, subject::Repr};
use crate::{Address, event::AdminAction};

impl Admin {
    /// The addresses that the user, spelled like this, has logged in from, the newest first.
    ///
    /// # Errors
    ///
    /// If the store failed.
    pub async fn known_addresses(&self, user: &str) -> Result<Vec<Address>, AdminError> {
        Ok(self.limiter.known_addresses(user).await?)
    }

    /// Forgets one of these addresses, or all of them with `None`: attempts from there count like any others. After
    /// an account was taken over, for example. Returns how many were forgotten.
    ///
    /// # Errors
    ///
    /// If the user is blank, or the store failed.
    pub async fn forget_address(
        &self,
        user: &str,
        address: Option<Address>,
        author: &Author,
    ) -> Result<usize, AdminError> {
        self.subject_of(user)?;
        let subject = match address {
            Some(address) => Repr::Pair(address.ip(), user.to_owned()),
            None => Repr::User(user.to_owned()),
        };
        self.audit(AdminAction::Forget, Some(&subject), author);
        let forgotten = {
            let user = self.limiter.user(user);
            self.ledger.forget(&user.known_addresses(), address)
        };
        Ok(forgotten.await?)
    }
}
