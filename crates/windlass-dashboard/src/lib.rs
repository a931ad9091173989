//! The dashboard: web pages that show what happens, explain failures and repair them.
//!
//! [`router`] returns the pages for a [`Backend`], which the server implements. Every page is
//! complete HTML from the server and can be read without JavaScript. Every action is a form. A small
//! script keeps figures live and adds keyboard shortcuts.
//!
//! The pages hold no state and write nothing. They call the REST API inside the process, as the
//! person who is signed in.

mod assets;
mod backend;
mod depths;
pub mod draw;
mod failure;
mod fields;
mod frame;
mod headers;
mod in_common;
mod live;
mod marks;
pub mod markup;
mod pages;
mod pretty;
mod series;
pub mod show;
mod sign_in;
mod site;
mod snapshot;
mod timeline;
mod visit;

pub use backend::{
    About, Answer, Backend, Call, Colour, Credential, Identity, Refusal, SignedIn, Visitor,
};
pub use site::router;
