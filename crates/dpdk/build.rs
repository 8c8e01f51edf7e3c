//! With the feature `link`: compiles `shim/shim.c`, which has what of DPDK is a static inline
//! function, and links DPDK by pkg-config. Without it: nothing.

fn main() {
    println!("cargo::rerun-if-changed=shim");
    #[cfg(feature = "link")]
    link();
}

#[cfg(feature = "link")]
fn link() {
    let dpdk = pkg_config::Config::new()
        .atleast_version("22.11")
        .cargo_metadata(false)
        .probe("libdpdk")
        .unwrap_or_else(|error| {
            panic!("the feature `dpdk` needs DPDK 22.11 or newer (Debian: libdpdk-dev): {error}")
        });
    cc::Build::new()
        .file("shim/shim.c")
        .includes(&dpdk.include_paths)
        .flag("-include")
        .flag("rte_config.h")
        // DPDK's least on this architecture; its own pkg-config says the same.
        .flag_if_supported("-march=corei7")
        .define("_GNU_SOURCE", None)
        .define("ALLOW_EXPERIMENTAL_API", None)
        .warnings(false)
        .flag("-Wall")
        .compile("butterfly_dpdk");
    for path in &dpdk.link_paths {
        println!("cargo::rustc-link-search=native={}", path.display());
    }
    // Drivers are plug-ins, which DPDK finds itself.
    for library in [
        "rte_ethdev",
        "rte_mbuf",
        "rte_mempool",
        "rte_net",
        "rte_ring",
        "rte_eal",
    ] {
        println!("cargo::rustc-link-lib={library}");
    }
}
