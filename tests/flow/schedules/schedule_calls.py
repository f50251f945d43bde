"""Schedules as a client makes, changes and reads them."""

NIGHTLY = {"name": "nightly", "trigger": "cron", "cron": "30 2 * * *", "timezone": "Europe/Berlin"}


def make(client, **changes):
    answer = client.post("/v1/schedules", json=NIGHTLY | changes)
    assert answer.status_code == 201, answer.text
    return answer.json()


def act(client, schedule, action):
    answer = client.post(f"/v1/schedules/{schedule['schedule_id']}:{action}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def read(client, schedule):
    return client.get(f"/v1/schedules/{schedule['schedule_id']}").json()


def retunes(client, **params):
    return client.get("/v1/retunes", params=params).json()["retunes"]
