"""This machine as a cloud: a pod is a folder, and a small shim process that owns its task.

    cloud.py      LocalCloud, the client that the portal holds: one short call per connection to the agent's socket
    agent.py      the node agent, a kubelet for one machine: an asyncio process that owns the folder of the cloud
    node.py       all that the agent knows, and its turns; requests.py is what the portal may ask of it
    runs.py       one run, moved forward from what lies in its folder (so a killed agent goes on where it was)
    tasks.py      one task of a run and its attempts; data.py is the data of a run
    scheduler.py  who gets which GPU and when the next attempt starts; pure
    journal.py    news with numbers, so that a watch can go on where it was
    shim.py       one process per attempt, outlives everything else; sandbox.py is what it puts around the task
    storage.py    one process per run with remote data: fetches the input, stores the output

Nothing in here knows Django.
"""
