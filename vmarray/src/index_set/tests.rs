//! Hashes that collide.
