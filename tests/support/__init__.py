"""What several kinds of tests share: trees of files, places that hold them, killers and liars."""
