"""Thousands of episodes that wait, and how fast each goes on once its reply is there; episodes of many turns.

waiting_bench      the run: its recipe, what is measured of it, the limits it must keep
turns_bench        the codec's part of a turn as episodes grow, and what is trained on of them
timed_reply        the episode: it waits, and says when it stopped waiting
scripted_launch    real processes, but for instances and the trainer, which compute nothing
scripted_instance  the process of an instance that computes nothing: turns take the time they are told to
scripted_trainer   the process of a trainer that computes nothing: it counts versions
"""
