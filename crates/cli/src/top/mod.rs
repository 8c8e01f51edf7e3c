//! `butterfly top`: [`views`] asks the daemon and makes rows, [`screen`] shows them and listens to
//! keys. What a view shows is asked for only while it is shown.

pub mod screen;
pub mod views;
