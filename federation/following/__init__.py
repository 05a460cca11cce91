"""Two gateways of one group: a follower holds a copy of what the leader holds, and tells it what is written
where it is. The parts that decide (`copying`, `outgoing`) do no IO; `leader` and `follower` are the shells.
"""
