//! The store in this process, in one program: linking takes longer than running.

mod few;
mod full;
mod locks;
mod suite;
mod threads;
