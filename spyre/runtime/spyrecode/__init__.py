"""SpyreCode directories: their files, read and written, and the compiler that makes them."""
