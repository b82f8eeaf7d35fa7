"""Commands that run at scheduled times, and the notifications about them."""
