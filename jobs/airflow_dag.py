"""An Airflow DAG that runs a bulkinfer job, resumes it when it was interrupted, and reads its summary.

Copy this file into your DAG folder (Airflow 3) and set two Airflow variables; docs/schedulers.md says more:

    airflow variables set bulkinfer_job /srv/tickets/job.yaml
    airflow variables set bulkinfer_command /opt/bulkinfer/.venv/bin/bulkinfer
"""

import json
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Context, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

LOCKED = 75
"""bulkinfer's exit code when another run holds the database."""

HOPELESS = {
    2: "the command line, the job file or the input is wrong",
    5: "more documents failed than limits.max_failures allows: `bulkinfer failures` lists them",
    126: "bulkinfer cannot be executed",
    127: "bulkinfer is not there: set the variable bulkinfer_command",
}
"""Exit codes that another try would only repeat. All others are worth one: it resumes, no document is asked twice."""


class RunJob(BashOperator):
    """A BashOperator that knows which exit codes are worth a retry."""

    def execute(self, context: Context) -> object:
        """Run the command; raises what makes Airflow skip, retry or give up."""
        try:
            return super().execute(context)
        except AirflowSkipException as skip:
            # At the first try, somebody else runs this job: nothing to do. At a later one it may be our own try before,
            # which was killed and still finishes what is in flight: wait for it.
            if context["ti"].try_number > 1:
                raise AirflowException("another run still holds the database") from skip
            raise
        except AirflowException as error:
            exit_code = self.subprocess_hook.sub_process.returncode
            if exit_code in HOPELESS:
                raise AirflowFailException(f"exit code {exit_code}: {HOPELESS[exit_code]}") from error
            raise


with DAG(
    dag_id="bulkinfer",
    schedule="0 2 * * *",
    catchup=False,  # one run does all that is missing, however many nights were missed
    max_active_runs=1,
) as dag:
    run_job = RunJob(
        task_id="run_job",
        # `exec`: a SIGTERM from Airflow reaches bulkinfer itself, which lets documents in flight finish for --grace
        # seconds. The last line is the summary; without --quiet the task's log shows progress before it.
        bash_command='exec "$BULKINFER" run "$JOB" --json --quiet --grace 30',
        env={
            "BULKINFER": "{{ var.value.get('bulkinfer_command', '/opt/bulkinfer/.venv/bin/bulkinfer') }}",
            "JOB": "{{ var.value.get('bulkinfer_job', '/opt/bulkinfer/jobs/summarize.yaml') }}",
        },
        append_env=True,
        skip_on_exit_code=LOCKED,
        retries=3,
        retry_delay=timedelta(seconds=60),  # more than --grace
        retry_exponential_backoff=2.0,
        max_retry_delay=timedelta(minutes=30),
        do_xcom_push=True,
        output_processor=json.loads,  # the summary goes to XCom as an object
    )

    @task
    def report(summary: dict[str, Any]) -> str:
        """What a task behind it can do with the summary: count, alert, start the next job."""
        documents = summary["documents"]
        return f"{documents['succeeded']} answered, {documents['failed']} failed, {documents['already_done']} before"

    report(run_job.output)
