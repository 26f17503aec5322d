"""Commands about boards and what is taken to them."""
