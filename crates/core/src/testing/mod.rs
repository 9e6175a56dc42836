//! Oracles, a manual clock, histories, and the suite every store must pass.
