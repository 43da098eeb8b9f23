//! Sets the soname of the shared library: `libforebay.so.MAJOR`, so that a program loads only releases that are
//! compatible with its build.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libforebay.so.{major}");
    // A thread that watches the daemon, and each thread's last error, outlive any `dlclose`.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
