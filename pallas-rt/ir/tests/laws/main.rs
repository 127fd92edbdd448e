//! Laws over both registries of operations.
mod oracle;
mod registry;
mod rules;
