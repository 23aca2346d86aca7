"""What bulkinfer is worth beside its peers: the same documents, one after the other. See docs/performance.md."""
