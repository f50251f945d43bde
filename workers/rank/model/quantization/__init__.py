"""Base weights in 4 bits beside an adapter: layers of bitsandbytes in place of linear ones, and checks that they stay so."""
