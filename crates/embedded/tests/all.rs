//! The store in this process, in one program: linking takes longer than running.

mod full;
mod locks;
mod several;
mod suite;
mod threads;
