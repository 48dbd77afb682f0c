"""Thousands of episodes that wait for their environments, and how fast each goes on once its reply is there.

waiting_bench      the run: its recipe, what is measured of it, the limits it must keep
timed_reply        the episode: it waits, and says when it stopped waiting
scripted_launch    real processes, but for instances and the trainer, which compute nothing
scripted_instance  the process of an instance that computes nothing: turns take the time they are told to
scripted_trainer   the process of a trainer that is never given a batch
"""
