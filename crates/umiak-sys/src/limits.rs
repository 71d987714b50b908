//! Resource limits of this process.

/// Raises soft limits that training tends to hit to their hard limits; ranks inherit them.
pub fn raise() {
    for resource in [libc::RLIMIT_NOFILE, libc::RLIMIT_MEMLOCK] {
        // SAFETY: rlimit is plain data; both calls concern our own process.
        unsafe {
            let mut limit: libc::rlimit = std::mem::zeroed();
            if libc::getrlimit(resource, &raw mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
                limit.rlim_cur = limit.rlim_max;
                libc::setrlimit(resource, &raw const limit);
            }
        }
    }
}
