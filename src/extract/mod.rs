//! How the layer finds out who makes a request.

mod address;
mod body;
mod forwarded;
mod user;
pub(crate) mod value;

pub use address::{AddressError, ExtractAddress, PeerAddress, PeerAddressExtension};
pub use body::{ExtractBodyUser, FormField, JsonField};
pub use forwarded::{ForwardedAddress, ForwardedError};
pub use user::{BasicAuth, ExtractUser, FromAsync, Header, NoUser, QueryField, UserError};

pub(crate) use user::Extracted;
