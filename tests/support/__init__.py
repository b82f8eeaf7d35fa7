"""Code that several kinds of tests share: file trees, test sites, fault injection."""
