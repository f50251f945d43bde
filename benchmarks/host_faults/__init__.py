"""What breaks under a gang, on a laboratory's hosts: how soon its ranks are gone, how soon that is said, and that studies finish."""
