"""Several real proxies on a real Redis, and everything that can go wrong between them.

``nodes`` has the processes, ``ways`` their breakable ways to Redis, ``witness`` what Redis told everybody, ``answers`` the
upstream's words and what a client may have got of them. The invariants of the tests' names (I1 to I8, L1 to L3, U1):

    I1  at most one accepted result for each flight and history
    I2  an accepted log is batches 1 to n of one attempt
    I3  a sealed result is the owner's, byte for byte
    I4  what a client has got is a prefix of one attempt's answer, and ends properly only if it is all of it
    I5  a stale owner's writes are refused, and counted
    I6  the numbers of a key's attempts rise
    I7  what is executed twice is done once
    I8  the owner of the accepted result is never told that it is fenced
    L1  a lost owner is replaced when its lease has lapsed
    L2  an end wakes who waits at once
    L3  nobody waits longer than ``follower_wait`` without a sign
    U1  upstream calls: one, and one for each takeover, partition or loss of data
"""
