//! What the program's commands do. The commands only read arguments and print; the work is in the other folders.

pub mod generate;
