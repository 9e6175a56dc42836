//! The algorithms, in one program: linking takes longer than running.

mod support;

mod bounds;
mod edges;
mod oracle;
mod peers;
mod properties;
mod requests;
mod smooth_guava;
